"""`LoaderMonitor`: the callback that shows what the wait for data costs, and where it comes from.

::

    hooks of the Trainer ─▶ LoopMonitor ─┬ every log_every_n_steps ─▶ loggers, progress bar
    (training, validation)               ╰ at the end of fit ─▶ statistics, verdict
"""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer

from lit_loader.core.options.checks import flag
from lit_loader.describe import public
from lit_loader.lightning.loop_monitor import LoopMonitor
from lit_loader.lightning.names import Callback
from lit_loader.profiling.statistics import LoaderStatistics

__all__ = ["LoaderMonitor"]


@public
class LoaderMonitor(Callback):
    """Logs what the wait for data costs, and says at the end of ``fit`` where it came from.

    It watches every `lit_loader.DataLoader` of the Trainer's training and validation loops; other
    loaders are left alone. Once in ``log_every_n_steps`` steps, and at the end of each validation,
    the Trainer's loggers get five figures of that interval:

    - ``loader/wait_fraction``: the part of the time in which the loop waited for batches. This is
      host time: a GPU that has work queued is busy meanwhile.
    - ``loader/samples_per_second``, or ``loader/tokens_per_second`` if the data counts tokens.
    - ``loader/worker_busy``: the part of their time in which the workers made batches.
    - ``loader/num_workers``
    - ``loader/sample_errors``: samples that could not be read.

    For validation the names begin with ``loader/val/``. If a loop has several loaders, ``loader/``
    is followed by a loader's key or position. The progress bar shows the training loop's wait as
    ``wait %``. At the end of ``fit``, each loader's verdict is printed.

    Under a distributed strategy each process watches its own loaders. The first one logs and
    prints.

    Args:
        progress_bar: Whether the progress bar shows the wait.
        print_verdict: Whether the verdicts are printed.

    Attributes:
        statistics: The `LoaderStatistics` of each loader by its name ("train", "val/1"), once
            ``fit`` has ended.

    Raises:
        OptionError: An argument is refused.
    """

    def __init__(self, progress_bar: bool = True, print_verdict: bool = True) -> None:
        super().__init__()
        self._progress_bar = flag("progress_bar", progress_bar)
        self._print_verdict = flag("print_verdict", print_verdict)
        self.statistics: dict[str, LoaderStatistics] = {}
        self._loops: dict[str, LoopMonitor] = {}
        self._interval = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with no loaders."""
        self.statistics = {}
        self._loops = {split: LoopMonitor(split) for split in ("train", "val")}
        self._interval = _interval(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the training loaders; again for each epoch, for Lightning may have made new ones."""
        self._loops["train"].watch(trainer.train_dataloader)

    on_train_epoch_start = on_train_start

    def on_train_batch_end(self, trainer: Trainer, *args: object, **kwargs: object) -> None:
        """Log if it is time to."""
        interval = _interval(trainer)
        if interval != self._interval:
            self._interval = interval
            self._log(trainer, self._loops["train"])

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the validation loaders."""
        if loop := self._loops.get("val"):  # there is none outside of fit
            loop.watch(trainer.val_dataloaders)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log."""
        if (loop := self._loops.get("val")) and not trainer.sanity_checking:
            self._log(trainer, loop)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the statistics, and print the verdicts."""
        loops, self._loops = self._loops, {}
        for loop in loops.values():
            loop.release()
            self.statistics |= loop.seen
        if self._print_verdict and trainer.is_global_zero:
            for name, statistics in self.statistics.items():
                print(f"{name} loader: {statistics}")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Do the same for what there is so far: many runs end by Ctrl-C."""
        self.on_fit_end(trainer, pl_module)

    def _log(self, trainer: Trainer, loop: LoopMonitor) -> None:
        figures = loop.figures()
        if not figures:
            return
        # The same number as Lightning's own metrics of the step that ends here have.
        step = max(0, trainer.global_step - 1)
        # Not by LightningModule.log, which goes through all of its metrics at every step.
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=step)
        if self._progress_bar and loop.split == "train":
            trainer.progress_bar_metrics["wait %"] = round(100 * loop.wait_fraction, 1)


def _interval(trainer: Trainer) -> int:
    """Return the number of the logging interval; if steps are never logged, always the same."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return trainer.global_step // every if every else 0
