"""A device that is not there: it shows which lines would fail on a GPU.

Inside of ``elsewhere()`` a tensor on ``ELSEWHERE`` holds its numbers in a tensor on the
CPU, but it must not meet one, it cannot become an array, and no generator of the CPU
draws it. PyTorch calls this device "meta". There is no speed and there are no kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from literate_rl.apps import training

ELSEWHERE = torch.device("meta")
# These may read from one device and write to another.
CROSSING = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
# Here an index may lie on the CPU.
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)


class Far(Tensor):
    """A tensor that says it is elsewhere."""

    is_meta = False  # or `load_state_dict` would warn that nothing is copied
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        far = Tensor._make_wrapper_subclass(
            *(cls, near.size(), near.stride(), near.storage_offset()),
            dtype=near.dtype,
            device=ELSEWHERE,
        )
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return carried_out(op, args, kwargs or {})

    def __repr__(self) -> str:
        return f"elsewhere: {self.near!r}"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("a tensor elsewhere is no array: use Tensor.cpu() first")
        return self.cpu().numpy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.near.__reduce_ex__(protocol)  # a checkpoint is read on the CPU


def carried_out(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Carry out an operation on the numbers, if a GPU would do so."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    far, place = any(isinstance(x, Far) for x in tensors), kwargs.get("device")
    goes = far if place is None else torch.device(place) == ELSEWHERE
    if not (far or goes):
        return op(*args, **kwargs)
    met = tensors[:1] if op in INDEXING else tensors
    if op not in CROSSING and any(not isinstance(x, Far) and x.dim() for x in met):
        raise RuntimeError(f"{op}: expected all tensors to be on the same device")
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{op}: the generator is on the CPU, the tensor is not")
    if place is not None:
        kwargs = kwargs | {"device": "cpu"}
    near_args, near_kwargs = tree_map(near, (args, kwargs))
    given = {id(near(x)): x for x in tensors}  # what writes in place returns these

    def returned(x: Any) -> Any:
        if id(x) in given:
            return given[id(x)]
        return Far(x) if goes and isinstance(x, Tensor) else x

    return tree_map(returned, op(*near_args, **near_kwargs))


def near(x: Any) -> Any:
    """Return the numbers of a tensor elsewhere, and anything else as it is."""
    return x.near if isinstance(x, Far) else x


class Elsewhere(TorchDispatchMode):
    """Carries out what makes tensors elsewhere, or takes them there."""

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if Far not in types and "device" not in kwargs:
            return op(*args, **kwargs)  # the same, sooner
        return carried_out(op, args, kwargs)


@contextmanager
def elsewhere() -> Iterator[None]:
    """Make the device there, and the best one that there is."""
    fused = optimizer._get_fused_kernels_supported_devices
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch, Elsewhere():
        patch.setattr(training, "best_device", lambda: ELSEWHERE)
        patch.setattr(
            optimizer,
            "_get_fused_kernels_supported_devices",
            lambda: [*fused(), ELSEWHERE.type],
        )
        # A parameter that is moved to a GPU stays the same object.
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            yield
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swapped)
