"""A GGUF file: its metadata by key, its tensors by name. Torch-free.

What the keys mean for a model is in `shared.loading.gguf_convert` and `shared.loading.gguf_tokenizer`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from shared.errors import SetupError
from shared.loading.setup_messages import one_line


class GgufFile:
    """Opened for reading; reading the metadata of a large vocabulary takes seconds.

    Raises SetupError if the file is not a whole GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = GGUFReader(path)
        except Exception as error:  # the reader trusts the file: a broken one ends in errors of any kind
            raise self.broken(one_line(error)) from error
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}  # name -> mapped, still quantized

    @property
    def tensor_names(self) -> set[str]:
        return set(self._tensors)

    @property
    def num_weights(self) -> int:
        return sum(int(tensor.n_elements) for tensor in self._tensors.values())

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key: a number, a string, a bool or a list of them."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        """The same for a key that must be there. Raises SetupError."""
        if key not in self._fields:
            raise self.broken(f"it has no {key}")
        return self.get(key)

    def num_rows(self, name: str) -> int:
        """The first dimension of a tensor, as PyTorch counts."""
        return int(self._tensors[name].shape[-1])

    def tensor(self, name: str) -> np.ndarray:
        """Dequantized to float32, in PyTorch's order of dimensions, e.g. [out, in]. Raises SetupError."""
        tensor = self._tensors[name]
        try:
            return dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        except NotImplementedError as error:
            raise SetupError(f"{self.path}: tensor {name} has a format that is not read here ({error})") from error

    def broken(self, why: str) -> SetupError:
        return SetupError(f"{self.path} is not a GGUF file that can be read ({why}); fetch or convert it again")
