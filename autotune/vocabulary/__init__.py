"""The words of this project: problems, environments, candidates, measurements, routes and tables."""
