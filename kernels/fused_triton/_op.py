"""Triton kernels of `fused_triton`: quantize, gate-up with SwiGLU, down, and the sum over experts.

Scheme codes (SCHEME): 0 bf16, 1 fp8 per tensor, 2 fp8 per channel and token, 3 fp8 block 128x128.
The problem's sizes are compile-time constants (one model, one kernel); everything that follows from the
token count is a run-time argument without specialization, so that no token count compiles anything.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.keys import settle

BF16 = tl.constexpr(0)
TENSOR = tl.constexpr(1)
CHANNEL = tl.constexpr(2)
BLOCK128 = tl.constexpr(3)
FP8_MAX = tl.constexpr(448.0)
TINY = tl.constexpr(1e-10)


@triton.jit
def _to_fp8(values):
    return tl.minimum(tl.maximum(values, -FP8_MAX), FP8_MAX).to(tl.float8e4nv)


@triton.jit
def _dot(w, x, acc, SWAP_AB: tl.constexpr, WIDEN: tl.constexpr):
    """acc + w @ x with w [BLOCK_N, BLOCK_K], x [BLOCK_K, BLOCK_M]; or x @ w where not swapped.

    WIDEN: Triton's interpreter computes garbage for a bf16 dot; there the operands go to float32 first.
    """
    if WIDEN:
        w = w.to(tl.float32)
        x = x.to(tl.float32)
    # One branch only is compiled: the other's shapes do not fit.
    if SWAP_AB:  # noqa: SIM108
        acc = tl.dot(w, x, acc=acc)
    else:
        acc = tl.dot(x, w, acc=acc)
    return acc


@triton.jit
def _scaled(partial, row_scale, weight_scale, SWAP_AB: tl.constexpr):
    """A block-scaled partial product: row_scale [BLOCK_M], weight_scale [BLOCK_N]."""
    if SWAP_AB:
        scaled = partial * weight_scale[:, None] * row_scale[None, :]
    else:
        scaled = partial * row_scale[:, None] * weight_scale[None, :]
    return scaled


@triton.jit
def quantize_kernel(
    x_ptr,
    q_ptr,
    scale_ptr,
    static_scale_ptr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    SCHEME: tl.constexpr,
):
    """Quantize one row of bf16 `x[rows, COLUMNS]` (grid: rows). WIDTH: power of two >= COLUMNS.

    Scales: per tensor given, per token `scale[rows]`, per group `scale[rows, COLUMNS/128]`.
    """
    row = tl.program_id(0).to(tl.int64)
    if SCHEME == BLOCK128:
        GROUPS: tl.constexpr = WIDTH // 128
        offsets = tl.arange(0, GROUPS)[:, None] * 128 + tl.arange(0, 128)[None, :]
        x = tl.load(x_ptr + row * COLUMNS + offsets, mask=offsets < COLUMNS, other=0.0).to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(x), 1), TINY) / FP8_MAX
        tl.store(q_ptr + row * COLUMNS + offsets, _to_fp8(x / scale[:, None]), mask=offsets < COLUMNS)
        groups = tl.arange(0, GROUPS)
        tl.store(scale_ptr + row * (COLUMNS // 128) + groups, scale, mask=groups < COLUMNS // 128)
    else:
        offsets = tl.arange(0, WIDTH)
        x = tl.load(x_ptr + row * COLUMNS + offsets, mask=offsets < COLUMNS, other=0.0).to(tl.float32)
        if SCHEME == CHANNEL:
            scale = tl.maximum(tl.max(tl.abs(x), 0), TINY) / FP8_MAX
            tl.store(scale_ptr + row, scale)
        else:
            scale = tl.load(static_scale_ptr)
        tl.store(q_ptr + row * COLUMNS + offsets, _to_fp8(x / scale), mask=offsets < COLUMNS)


@triton.jit
def _block_of(pid, rows_padded, BLOCK_M: tl.constexpr, N_TILES: tl.constexpr, GROUP_M: tl.constexpr):
    """Which row block and column tile a program computes, grouped so that neighbours share weights in L2."""
    row_blocks = rows_padded // BLOCK_M
    in_group = GROUP_M * N_TILES
    first = pid // in_group * GROUP_M
    size = tl.minimum(row_blocks - first, GROUP_M)
    return first + (pid % in_group) % size, (pid % in_group) // size


@triton.jit(do_not_specialize=["pairs"])
def gate_up_kernel(
    x_ptr,
    x_scale_ptr,
    w_ptr,
    w_scale_ptr,
    out_ptr,
    out_scale_ptr,
    out_static_scale_ptr,
    sorted_pairs_ptr,
    block_expert_ptr,
    padded_rows_ptr,
    pairs,
    N: tl.constexpr,
    K: tl.constexpr,
    TOPK: tl.constexpr,
    SCHEME: tl.constexpr,
    QUANTIZE_OUT: tl.constexpr,
    UP_FIRST: tl.constexpr,
    SWAP_AB: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """out[i, :] = silu(x[token] @ gate.T) * (x[token] @ up.T) for padded row i, one [BLOCK_M, BLOCK_N] tile.

    x [M, K], w [E, 2N, K] (gate rows first; with UP_FIRST the up rows, and "gate" below names the first half
    up to the activation), out [padded rows, N] in expert order. With QUANTIZE_OUT the tile
    is stored as FP8: per tensor with the static scale, per block with `out_scale[padded rows, N/128]`.
    """
    rows_padded = tl.load(padded_rows_ptr)
    N_TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    pid = tl.program_id(0)
    if pid >= rows_padded // BLOCK_M * N_TILES:
        return
    row_block, n_tile = _block_of(pid, rows_padded, BLOCK_M, N_TILES, GROUP_M)
    expert = tl.load(block_expert_ptr + row_block).to(tl.int64)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    pair = tl.load(sorted_pairs_ptr + rows)
    real = pair < pairs
    token = (pair // TOPK).to(tl.int64)
    columns = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    # Columns past N read another column's weights and are never stored: cheaper than masking every load.
    safe = columns % N
    k = tl.arange(0, BLOCK_K)

    gate_base = w_ptr + expert * (2 * N * K)
    if SWAP_AB:
        x_ptrs = x_ptr + token[None, :] * K + k[:, None]
        gate_ptrs = gate_base + safe[:, None] * K + k[None, :]
        x_real = real[None, :]
        gate_acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    else:
        x_ptrs = x_ptr + token[:, None] * K + k[None, :]
        gate_ptrs = gate_base + safe[None, :] * K + k[:, None]
        x_real = real[:, None]
        gate_acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up_ptrs = gate_ptrs + N * K
    up_acc = gate_acc
    if SCHEME == BLOCK128:
        scale_base = w_scale_ptr + expert * ((2 * N // 128) * (K // 128))
        gate_scale_ptrs = scale_base + (safe // 128) * (K // 128)
        up_scale_ptrs = gate_scale_ptrs + (N // 128) * (K // 128)
        x_scale_ptrs = x_scale_ptr + token * (K // 128)

    for step in range((K + BLOCK_K - 1) // BLOCK_K):
        if K % BLOCK_K == 0:
            x = tl.load(x_ptrs, mask=x_real, other=0.0)
            gate = tl.load(gate_ptrs)
            up = tl.load(up_ptrs)
        else:
            left = K - step * BLOCK_K
            if SWAP_AB:
                x = tl.load(x_ptrs, mask=x_real & (k[:, None] < left), other=0.0)
                gate = tl.load(gate_ptrs, mask=k[None, :] < left, other=0.0)
                up = tl.load(up_ptrs, mask=k[None, :] < left, other=0.0)
            else:
                x = tl.load(x_ptrs, mask=x_real & (k[None, :] < left), other=0.0)
                gate = tl.load(gate_ptrs, mask=k[:, None] < left, other=0.0)
                up = tl.load(up_ptrs, mask=k[:, None] < left, other=0.0)
        if SCHEME == BLOCK128:
            group = step * BLOCK_K // 128
            x_scale = tl.load(x_scale_ptrs + group, mask=real, other=0.0)
            zero = tl.zeros_like(gate_acc)
            gate_acc += _scaled(
                _dot(gate, x, zero, SWAP_AB, WIDEN), x_scale, tl.load(gate_scale_ptrs + group), SWAP_AB
            )
            up_acc += _scaled(
                _dot(up, x, zero, SWAP_AB, WIDEN), x_scale, tl.load(up_scale_ptrs + group), SWAP_AB
            )
        else:
            gate_acc = _dot(gate, x, gate_acc, SWAP_AB, WIDEN)
            up_acc = _dot(up, x, up_acc, SWAP_AB, WIDEN)
        x_ptrs += BLOCK_K
        gate_ptrs += BLOCK_K
        up_ptrs += BLOCK_K

    if SWAP_AB:
        gate_acc = tl.trans(gate_acc)
        up_acc = tl.trans(up_acc)
    if SCHEME == TENSOR:
        scale = tl.load(x_scale_ptr) * tl.load(w_scale_ptr + expert)
        gate_acc *= scale
        up_acc *= scale
    if SCHEME == CHANNEL:
        x_scale = tl.load(x_scale_ptr + token, mask=real, other=0.0)[:, None]
        channel = w_scale_ptr + expert * (2 * N) + safe
        gate_acc *= x_scale * tl.load(channel)[None, :]
        up_acc *= x_scale * tl.load(channel + N)[None, :]
    if UP_FIRST:
        first_half = gate_acc
        gate_acc = up_acc
        up_acc = first_half
    inner = gate_acc / (1.0 + tl.exp(-gate_acc)) * up_acc

    out_rows = rows.to(tl.int64)[:, None] * N
    inside = (columns < N)[None, :]
    if QUANTIZE_OUT:
        if SCHEME == TENSOR:
            quantized = _to_fp8(inner / tl.load(out_static_scale_ptr))
        else:
            # BLOCK_N is a multiple of 128 here, so that whole groups lie in this tile.
            GROUPS: tl.constexpr = BLOCK_N // 128
            grouped = tl.reshape(inner, (BLOCK_M, GROUPS, 128))
            scale = tl.maximum(tl.max(tl.abs(grouped), 2), TINY) / FP8_MAX
            quantized = tl.reshape(_to_fp8(grouped / scale[:, :, None]), (BLOCK_M, BLOCK_N))
            groups = n_tile * GROUPS + tl.arange(0, GROUPS)
            tl.store(
                out_scale_ptr + rows.to(tl.int64)[:, None] * (N // 128) + groups[None, :],
                scale,
                mask=(groups < N // 128)[None, :],
            )
        tl.store(out_ptr + out_rows + columns[None, :], quantized, mask=inside)
    else:
        tl.store(out_ptr + out_rows + columns[None, :], inner.to(tl.bfloat16), mask=inside)


@triton.jit(do_not_specialize=["pairs"])
def down_kernel(
    x_ptr,
    x_scale_ptr,
    w_ptr,
    w_scale_ptr,
    topk_weights_ptr,
    out_ptr,
    sorted_pairs_ptr,
    block_expert_ptr,
    padded_rows_ptr,
    pairs,
    N: tl.constexpr,
    K: tl.constexpr,
    SCHEME: tl.constexpr,
    SWAP_AB: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """out[pair, :] = topk_weight[pair] * (x[i] @ w.T) for padded row i, one [BLOCK_M, BLOCK_N] tile.

    x [padded rows, N] in expert order, w [E, K, N], out [M * topk, K] bf16 in pair order.
    """
    rows_padded = tl.load(padded_rows_ptr)
    K_TILES: tl.constexpr = (K + BLOCK_N - 1) // BLOCK_N
    pid = tl.program_id(0)
    if pid >= rows_padded // BLOCK_M * K_TILES:
        return
    row_block, k_tile = _block_of(pid, rows_padded, BLOCK_M, K_TILES, GROUP_M)
    expert = tl.load(block_expert_ptr + row_block).to(tl.int64)
    rows = (row_block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    pair = tl.load(sorted_pairs_ptr + rows)
    real = pair < pairs
    columns = k_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = columns % K
    n = tl.arange(0, BLOCK_K)

    w_base = w_ptr + expert * (K * N)
    if SWAP_AB:
        x_ptrs = x_ptr + rows[None, :] * N + n[:, None]
        w_ptrs = w_base + safe[:, None] * N + n[None, :]
        x_real = real[None, :]
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    else:
        x_ptrs = x_ptr + rows[:, None] * N + n[None, :]
        w_ptrs = w_base + safe[None, :] * N + n[:, None]
        x_real = real[:, None]
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if SCHEME == BLOCK128:
        w_scale_ptrs = w_scale_ptr + expert * ((K // 128) * (N // 128)) + (safe // 128) * (N // 128)
        x_scale_ptrs = x_scale_ptr + rows * (N // 128)

    for step in range((N + BLOCK_K - 1) // BLOCK_K):
        if N % BLOCK_K == 0:
            x = tl.load(x_ptrs, mask=x_real, other=0.0)
            w = tl.load(w_ptrs)
        else:
            left = N - step * BLOCK_K
            if SWAP_AB:
                x = tl.load(x_ptrs, mask=x_real & (n[:, None] < left), other=0.0)
                w = tl.load(w_ptrs, mask=n[None, :] < left, other=0.0)
            else:
                x = tl.load(x_ptrs, mask=x_real & (n[None, :] < left), other=0.0)
                w = tl.load(w_ptrs, mask=n[:, None] < left, other=0.0)
        if SCHEME == BLOCK128:
            group = step * BLOCK_K // 128
            x_scale = tl.load(x_scale_ptrs + group, mask=real, other=0.0)
            partial = _dot(w, x, tl.zeros_like(acc), SWAP_AB, WIDEN)
            acc += _scaled(partial, x_scale, tl.load(w_scale_ptrs + group), SWAP_AB)
        else:
            acc = _dot(w, x, acc, SWAP_AB, WIDEN)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K

    if SWAP_AB:
        acc = tl.trans(acc)
    if SCHEME == TENSOR:
        acc *= tl.load(x_scale_ptr) * tl.load(w_scale_ptr + expert)
    if SCHEME == CHANNEL:
        x_scale = tl.load(x_scale_ptr + rows, mask=real, other=0.0)[:, None]
        acc *= x_scale * tl.load(w_scale_ptr + expert * K + safe)[None, :]
    acc *= tl.load(topk_weights_ptr + pair, mask=real, other=0.0)[:, None]
    out_ptrs = out_ptr + pair.to(tl.int64)[:, None] * K + columns[None, :]
    tl.store(out_ptrs, acc.to(tl.bfloat16), mask=real[:, None] & (columns < K)[None, :])


@triton.jit
def sum_kernel(
    x_ptr,
    ids_ptr,
    out_ptr,
    K: tl.constexpr,
    TOPK: tl.constexpr,
    EXPERTS: tl.constexpr,
    SPARSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[token, :] = sum over slots of x[token, slot, :], in slot order (grid: tokens, column tiles).

    SPARSE: slots of experts on other ranks (numbers from EXPERTS on) and of none (-1) were never written and
    are left out.
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < K
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(TOPK):
        mask = inside
        if SPARSE:
            expert = tl.load(ids_ptr + token * TOPK + slot)
            mask = inside & (expert >= 0) & (expert < EXPERTS)
        total += tl.load(x_ptr + (token * TOPK + slot) * K + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * K + columns, total.to(tl.bfloat16), mask=inside)


settle(globals())
