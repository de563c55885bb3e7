"""Makes vLLM use a routing table: an entry point of `vllm.general_plugins`."""

from __future__ import annotations


def register() -> None:
    """Start the plugin in this process. Never raises: vLLM would not start.

    vLLM calls this in the front end, in the engine's process and in every worker, before the model is
    loaded, and may call it twice.
    """
    try:
        from autotune.vllm_plugin.start import start

        start()
    except Exception as error:
        from autotune.vllm_plugin.log import logger

        logger().warning("autotune: disabled, vLLM runs unchanged: %s: %s", type(error).__name__, error)
