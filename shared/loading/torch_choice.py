"""Which device and element type a model runs in, and the reason; and the move there."""

import torch

from shared.errors import SetupError


def choose_device(wanted: str) -> tuple[torch.device, str]:
    """wanted: auto, cpu, cuda or mps. Raises SetupError if this machine or this torch does not have it."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda"), f"auto: {torch.cuda.get_device_name()}"
        if torch.backends.mps.is_available():
            return torch.device("mps"), "auto: an Apple GPU"
        return torch.device("cpu"), "auto: no GPU that this torch can use"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise SetupError(f"device cuda: torch {torch.__version__} finds no NVIDIA GPU; use cpu, or a torch with CUDA")
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise SetupError(f"device mps: torch {torch.__version__} finds no Apple GPU; use cpu")
    return torch.device(wanted), "asked for"


def choose_dtype(wanted: str, device: torch.device) -> tuple[torch.dtype, str]:
    """wanted: auto or the name of a floating type. Raises SetupError if the device does not have it."""
    if wanted == "float64" and device.type == "mps":
        raise SetupError("dtype float64: Apple GPUs do not have it; use float32, or device cpu")
    if wanted != "auto":
        return getattr(torch, wanted), "asked for"
    if device.type == "cpu":
        return torch.float32, "auto: exact enough to compare with a reference"
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "auto: the GPU computes in it"
    return torch.float16, "auto: half the memory of float32" + (", no bfloat16" if device.type == "cuda" else "")


def settle(model: torch.nn.Module, device: torch.device) -> None:
    """Move the model to its device, in eval mode and without gradients. Raises SetupError if it does not fit."""
    model.eval().requires_grad_(False)
    try:
        if device.type == "cpu":
            _copy_out_of_the_file(model)
        else:
            model.to(device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        size = sum(weight.nbytes for weight in model.parameters()) / 1e9
        ways = "use a smaller model, a smaller dtype or another device"
        raise SetupError(f"the model's {size:.1f} GB do not fit into the memory of {device}; {ways}") from error


def _copy_out_of_the_file(model: torch.nn.Module) -> None:
    """Safetensors' weights are mapped from the file; memory of one's own is a few percent faster to read."""
    for weight in model.parameters():  # a tied head is the embedding's own object, so it stays tied
        weight.data = weight.data.clone()
