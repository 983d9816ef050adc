"""A frozen backbone: weights that no update carries, in a file of each side whose digest the study's terms name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from learning.blocks import file_sha256
from learning.options import OptionError, TrainingOptions, require
from learning.own_task import TaskUnavailable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class BackboneOptions(TrainingOptions):
    """Options of a model with a frozen backbone, besides those of training.

    Attributes:
        backbone: name of a file in the safetensors format, in the folder where the command runs, as the task's own
            module; never a path, since a stranger may have written the study.
        backbone_sha256: SHA-256 of that file in hex. Where it is empty, as before a study is made, that of the file
            which is there: a study states it, and each participant signs it with the rest of the terms.
    """

    backbone: str = ""
    backbone_sha256: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, pattern, expected in (
            ("backbone", r"[\w.+-]{0,200}", "the name of a file, without a folder, of letters, digits and _.+-"),
            ("backbone_sha256", "([0-9a-f]{64})?", "64 digits of 0-9 and a-f"),
        ):
            value = getattr(self, name)
            require(re.fullmatch(pattern, value) is not None, name, value, expected)

    def settled(self) -> Self:
        """With the digest of the file, which is read for it; as they are where no file is named.

        Raises TaskUnavailable: it isn't there, or its digest is another one.
        """
        if not self.backbone:
            return self
        file = Path(self.backbone).absolute()
        stated = f" with the SHA-256 {self.backbone_sha256}" if self.backbone_sha256 else ""
        try:
            found = file_sha256(file)
        except OSError as error:
            raise TaskUnavailable(
                f"the frozen backbone {file} can't be read ({error.strerror}): put the study's file{stated} there, or "
                "run the command in the folder that holds it"
            ) from error
        if self.backbone_sha256 not in ("", found):
            raise TaskUnavailable(
                f"the frozen backbone {file} has the SHA-256 {found}, and the study's has {self.backbone_sha256}: put "
                "the study's file in its place"
            )
        return replace(self, backbone_sha256=found)

    def tensors(self) -> dict[str, torch.Tensor]:
        """As `learning.tasks.torch_module.TorchModule.backbone`."""
        if not self.backbone:
            raise OptionError("option 'backbone' is empty; it must name the file of the frozen weights")
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ModuleNotFoundError as missing:
            raise TaskUnavailable(
                "safetensors, which reads a frozen backbone, is not installed: pip install '.[torch]' in the checkout"
            ) from missing
        try:
            return load_file(self.backbone)
        except SafetensorError as error:
            raise OptionError(
                f"the frozen backbone {self.backbone} is no safetensors file ({error}): write it by "
                "safetensors.torch.save_file"
            ) from error
