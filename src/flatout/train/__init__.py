"""Lightning glue: a config in, a trained model and a record of the run out."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.train.module import TaskModule as TaskModule
    from flatout.train.module import mean_of as mean_of
    from flatout.train.posterior import PosteriorMetricsMonitor as PosteriorMetricsMonitor
    from flatout.train.progress import epoch_line as epoch_line
    from flatout.train.record import RunResult as RunResult
    from flatout.train.run import fit as fit
    from flatout.train.task import Augment as Augment
    from flatout.train.task import Batch as Batch
    from flatout.train.task import Sample as Sample
    from flatout.train.task import SampleTransform as SampleTransform
    from flatout.train.task import Task as Task
    from flatout.train.task import TaskData as TaskData
    from flatout.train.task import load_task as load_task
    from flatout.train.weights import load_weights as load_weights

_HOMES = {
    "fit": "run",
    "RunResult": "record",
    "Task": "task",
    "TaskData": "task",
    "TaskModule": "module",
    "mean_of": "module",
    "Batch": "task",
    "Augment": "task",
    "Sample": "task",
    "SampleTransform": "task",
    "load_task": "task",
    "load_weights": "weights",
    "epoch_line": "progress",
    "PosteriorMetricsMonitor": "posterior",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
