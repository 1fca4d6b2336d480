"""Config: every setting of flatout in one flat, typed, immutable model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr
from pydantic_core import PydanticCustomError

from flatout.config.augmentation import AugmentSettings
from flatout.config.loader import SplitSettings
from flatout.config.monitor import MonitorSettings
from flatout.config.prepare import PrepareSettings
from flatout.config.reading import ReadSettings
from flatout.config.section import Section
from flatout.config.source import SourceSettings
from flatout.config.train import TrainSettings

Task = Literal["cardiac_ct", "heart_sound", "speech", "segmentation", "sequence_vae"]
OWN_TASK = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"


def _check_own_task(name: str) -> str:
    if re.match(OWN_TASK, name) is None:  # pydantic's own check would show the pattern to the user
        raise PydanticCustomError("own_task", "Input should be a class of your own as package.module:Name")
    return name


OwnTask = Annotated[str, AfterValidator(_check_own_task), Field(json_schema_extra={"pattern": OWN_TASK})]
"""A class of the user's own, as package.module:Name."""
Preset = Literal[
    "recommended",
    "max_performance",
    "memory_limited",
    "debug",
    "windows",
    "linux",
    "low_memory_gpu",
    "high_memory_gpu",
]


class TaskSettings(Section):
    """What is trained, and the ready-made settings a config starts from."""

    task: Task | OwnTask | None = None
    """The kind of training, or `package.module:Name` of your own; its defaults stand below everything else."""
    preset: Preset | None = None
    """Ready-made settings between the task's defaults and the file; see `flatout presets`."""
    code_dir: str | None = None
    """Folder of the modules that `task` and `transform` name; absent: that of the config file."""


# pydantic lists the fields of the last base first: read from the bottom up.
class Config(
    MonitorSettings,
    TrainSettings,
    AugmentSettings,
    ReadSettings,
    SplitSettings,
    PrepareSettings,
    SourceSettings,
    TaskSettings,
):
    """All settings. `load_config` makes one with the task's and the preset's values in place."""

    _config_dir: Path | None = PrivateAttr(default=None)

    @property
    def config_dir(self) -> Path | None:
        """Folder where modules of `task` and `transform` are looked for, too: `code_dir`, or the file's own."""
        return self._config_dir if self.code_dir is None else Path(self.code_dir).absolute()

    def __eq__(self, other: object) -> bool:
        """Equal settings; where they were read from does not count."""
        if not isinstance(other, Config):
            return NotImplemented
        return self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]


def config_schema() -> dict[str, Any]:
    """The JSON schema of a config file with canonical names, descriptions and defaults."""
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flatout config"} | {
        key: value for key, value in schema.items() if key != "title"
    }
