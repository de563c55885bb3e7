"""A whole vLLM engine: start it, generate, print what was generated. Run by `test_serving_gpu.py`.

    python serve_once.py MODEL_FOLDER [FLAG [RANKS]]

Prints one JSON line: for each prompt its generated token ids with their log probabilities, the log
probabilities of its own tokens but the first, and the seconds that the start took. The file FLAG is made
between the start and the first prompt. RANKS is the number of GPUs that share each layer. With SERVE_ALONE
set the prompts come one after another. SERVE_OPTIONS holds more of the engine's options as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PROMPTS = (8, 600)
NEW_TOKENS = 12


def main() -> None:
    import vllm

    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    compilation: dict[str, Any] = {"cudagraph_capture_sizes": [1, 2, 4, 8]}
    if ranks > 1:
        # FlashInfer would compile its fused all-reduce for minutes, and no route depends on it.
        compilation["pass_config"] = {"fuse_allreduce_rms": False}
    more = json.loads(os.environ.get("SERVE_OPTIONS", "{}"))
    compilation |= more.pop("compilation_config", {})
    start = time.monotonic()
    engine: Any = vllm.LLM(
        sys.argv[1],
        load_format="dummy",
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=1 << 30,
        max_model_len=2048,
        enable_prefix_caching=False,
        compilation_config=compilation,
        tensor_parallel_size=ranks,
        **more,
    )
    ready = time.monotonic()
    if len(sys.argv) > 2:
        Path(sys.argv[2]).touch()
    wanted = vllm.SamplingParams(
        max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    prompts = [{"prompt_token_ids": [100 + 7 * i % 1000 for i in range(length)]} for length in PROMPTS]
    batches = [[prompt] for prompt in prompts] if os.environ.get("SERVE_ALONE") else [prompts]
    answers = [a for batch in batches for a in engine.generate(batch, wanted, use_tqdm=False)]
    found = [a.outputs[0] for a in answers]
    answer = {
        "tokens": [list(one.token_ids) for one in found],
        "logprobs": [_own(one.token_ids, one.logprobs) for one in found],
        "read": [_own(a.prompt_token_ids[1:], a.prompt_logprobs[1:]) for a in answers],
        "start_s": round(ready - start, 1),
    }
    print(json.dumps(answer), flush=True)


def _own(tokens: Any, places: Any) -> list[float]:
    """The log probability of the token at each place."""
    return [place[token].logprob for token, place in zip(tokens, places, strict=True)]


if __name__ == "__main__":
    main()
