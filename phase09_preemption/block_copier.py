"""Copies whole blocks of K/V between the device's pool and host memory. It does not know whose they are."""

from collections.abc import Sequence as Seq

import torch

from phase08_paged_attention.paged_kv_cache import PagedKVCache, zeros


class BlockCopier:
    """Host memory for `num_blocks` blocks: `[L, blocks, H, P, D]` for K and for V, pinned where the device is CUDA."""

    def __init__(self, cache: PagedKVCache, num_blocks: int) -> None:
        self.cache = cache
        shape = (cache.key.shape[0], num_blocks, *cache.key.shape[2:])
        self.key, self.value = (_host_memory(shape, cache.key) for _ in range(2))

    @torch.inference_mode()
    def to_host(self, device_blocks: Seq[int], host_blocks: Seq[int]) -> None:
        """Done when it returns, so that the device's blocks can be given away at once."""
        self.key[:, host_blocks] = self.cache.key[:, device_blocks].cpu()
        self.value[:, host_blocks] = self.cache.value[:, device_blocks].cpu()

    @torch.inference_mode()
    def to_device(self, host_blocks: Seq[int], device_blocks: Seq[int]) -> None:
        device = self.cache.key.device
        self.cache.key[:, device_blocks] = self.key[:, host_blocks].to(device)
        self.cache.value[:, device_blocks] = self.value[:, host_blocks].to(device)


def _host_memory(shape: Seq[int], like: torch.Tensor) -> torch.Tensor:
    if like.device.type == "cuda":
        return torch.zeros(tuple(shape), dtype=like.dtype, pin_memory=True)
    return zeros(shape, like.dtype, torch.device("cpu"))
