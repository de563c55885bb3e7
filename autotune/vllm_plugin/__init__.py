"""Makes vLLM use a routing table: an entry point of `vllm.general_plugins`."""

from __future__ import annotations


def register() -> None:
    """Start the plugin in this process. Never raises: vLLM would not start.

    vLLM calls this in the front end, in the engine's process and in every worker, before the model is
    loaded, and may call it twice. Only Ctrl-C gets through.
    """
    try:
        from autotune.vllm_plugin.start import start

        start()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Also SystemExit, with which a broken import may end.
        from autotune.vllm_plugin.log import warn_once

        warn_once(f"disabled, vLLM runs unchanged: {type(error).__name__}: {error}")
