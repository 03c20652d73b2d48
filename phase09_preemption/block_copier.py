"""Copies whole blocks of K/V between the device's pool and host memory. It does not know whose they are."""

from collections.abc import Sequence

import torch

from phase08_paged_attention.paged_kv_cache import PagedKVCache


class BlockCopier:
    """Host memory for `num_blocks` blocks: `[L, blocks, P, H, D]` for K and for V, pinned where the device is CUDA."""

    def __init__(self, cache: PagedKVCache, num_blocks: int) -> None:
        self.cache = cache
        shape = (cache.key.shape[0], num_blocks, *cache.key.shape[2:])
        is_pinned = cache.key.device.type == "cuda" and num_blocks > 0
        self.key = torch.zeros(shape, dtype=cache.key.dtype, pin_memory=is_pinned)
        self.value = torch.zeros(shape, dtype=cache.value.dtype, pin_memory=is_pinned)

    @torch.inference_mode()
    def to_host(self, device_blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Done when it returns, so that the device's blocks can be given away at once."""
        self.key[:, host_blocks] = self.cache.key[:, device_blocks].cpu()
        self.value[:, host_blocks] = self.cache.value[:, device_blocks].cpu()

    @torch.inference_mode()
    def to_device(self, host_blocks: Sequence[int], device_blocks: Sequence[int]) -> None:
        device = self.cache.key.device
        self.cache.key[:, device_blocks] = self.key[:, host_blocks].to(device)
        self.cache.value[:, device_blocks] = self.value[:, host_blocks].to(device)
