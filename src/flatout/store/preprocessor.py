"""DataPreprocessor: prepare and verify a store from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.config import Config, load_config
from flatout.errors import ConfigError
from flatout.store.job import Job, job_from_dataset
from flatout.store.prepare import PrepareOptions, prepare
from flatout.store.progress import Progress, Silent
from flatout.store.recorded import job_of_store
from flatout.store.statistics import RunStats
from flatout.store.versions import settings_of_root

if TYPE_CHECKING:
    from flatout.store.verification import VerifyReport


class DataPreprocessor:
    """Raw data -> store, by a config (a Config, a dict, or the path of a config file).

    Example:
        >>> preprocessor = DataPreprocessor({"csv_path": "data.csv", "preprocessed_data_dir": "store"})
        >>> preprocessor.run().num_samples                                 # doctest: +SKIP
        1000
        >>> bool(preprocessor.verify_data_integrity())                     # doctest: +SKIP
        True
    """

    def __init__(self, config: Config | Mapping[str, Any] | str | Path) -> None:
        self.config = load_config(config)
        self._dataset: Any = None

    @classmethod
    def from_dataset(cls, dataset: Any, output_dir: str | Path, **settings: Any) -> DataPreprocessor:
        """A map-style dataset (`len`, `[index]`) as the source; its items become the samples.

        A dict item keeps its names, a pair becomes `input` and `target`. The items must be the same each
        time they are read: random augmentation would be frozen into the store.
        """
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ConfigError(
                f"{type(dataset).__name__} has no length or no [index]; a map-style dataset is needed"
            )
        preprocessor = cls({**settings, "preprocessed_data_dir": str(output_dir)})
        preprocessor._dataset = dataset
        return preprocessor

    def run(
        self, force: bool = False, *, accept_fingerprint: bool = False, progress: Progress | None = None
    ) -> RunStats:
        """Make what is missing or out of date; everything with `force`. Continues a run that was cut off.

        Raises:
            ConfigError, ManifestError, StoreError: see their messages.
        """
        options = PrepareOptions(force=force, accept_fingerprint=accept_fingerprint)
        config = self.config
        settings: Mapping[str, Any] = {}
        if config.preprocessed_data_dir is not None and not force:
            settings = settings_of_root(Path(config.preprocessed_data_dir))

        def make_job(known_classes: Mapping[str, Sequence[str]]) -> Job:
            if self._dataset is not None:
                return job_from_dataset(self._dataset, config, settings)
            return job_of_store(config, settings, known_classes)

        return prepare(config, make_job, options, progress or Silent())

    def verify_data_integrity(self) -> VerifyReport:
        """Check every byte of the store; the report is true or false."""
        from flatout.store.verification import verify

        if self.config.preprocessed_data_dir is None:
            raise ConfigError("no store to verify: set preprocessed_data_dir")
        return verify(Path(self.config.preprocessed_data_dir))
