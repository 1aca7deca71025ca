"""`LoaderMonitor`: the callback that shows what the wait for data costs, and what it comes from.

Made by users and by Hydra, passed to the Trainer, whose hooks it hands on::

    hooks of a loop ─▶ LoopMonitor ─┬ every log_every_n_steps ─▶ loggers, progress bar
                                    ╰ at the end ─▶ LoaderReport, verdict, timeline, picture
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal

from lightning.pytorch import LightningModule, Trainer

from lit_loader.core.options.checks import flag, plain, refuse, whole_number
from lit_loader.describe import public
from lit_loader.lightning.loop_monitor import LoaderReport, LoopMonitor
from lit_loader.lightning.names import Callback
from lit_loader.profiling.chrome_trace import write_trace
from lit_loader.profiling.plot import check_matplotlib, write_plot

__all__ = ["LoaderMonitor"]

_FILES: Final = {"trace": "loader_trace.json", "plot": "loader.png"}


@public
class LoaderMonitor(Callback):
    """Logs what the wait for data costs, and says at the end of ``fit`` what it came from.

    For every `lit_loader.DataLoader` of the Trainer's training and validation loops; others are
    left alone. Once in ``log_every_n_steps`` steps, and for a validation loop at its end, the
    Trainer's loggers get the figures of that interval: ``loader/wait_ms`` (for a batch, mean),
    ``loader/wait_fraction`` (of the time), ``loader/ready`` (batches that are made and wait, at
    that moment), ``loader/num_workers``, ``loader/worker_busy`` (fraction, mean over the workers),
    ``loader/worker_restarts`` and ``loader/sample_errors``; where the dataset marks its reads also
    ``loader/read_fraction`` (of the workers' time, waited for them); with remote workers also
    ``loader/remote_fraction`` (of the batches), ``loader/remote_mb_per_s`` and
    ``loader/transit_ms`` (for a batch of theirs, mean). Those of validation begin with
    ``loader/val/``; where a loop has several loaders, ``loader/`` is followed by a loader's key or
    position. The progress bar shows the training loop's wait, as ``wait %``.

    Under a distributed strategy each process watches its own loaders; the first one logs and
    prints, and each writes its files, those of the others being named ``….rank1.json`` and so on.

    Args:
        trace: File that a timeline is written to at the end, for https://ui.perfetto.dev; True:
            ``loader_trace.json`` in the Trainer's ``default_root_dir``; None: no timeline.
        plot: File that a picture is written to, as PNG; True: ``loader.png`` there; needs
            matplotlib.
        keep: Batches of each loader that timeline and picture show, the last so many (600 bytes of
            memory each).
        progress_bar: Whether the wait is shown there.
        print_verdict: Whether the verdict is printed.

    Attributes:
        reports: Of each loader, once ``fit`` has ended.

    Raises:
        OptionError: An argument is refused, or matplotlib is missing.
    """

    def __init__(
        self,
        trace: str | os.PathLike[str] | bool | None = None,
        plot: str | os.PathLike[str] | bool | None = None,
        keep: int = 10_000,
        progress_bar: bool = True,
        print_verdict: bool = True,
    ) -> None:
        keep = whole_number("keep", keep, low=1)
        self._files = {"trace": _checked_file("trace", trace), "plot": _checked_file("plot", plot)}
        if self._files["plot"]:
            check_matplotlib("LoaderMonitor(plot=...)")
        self.reports: tuple[LoaderReport, ...] = ()
        self._keep = keep if any(self._files.values()) else 0
        self._progress_bar = flag("progress_bar", progress_bar)
        self._print_verdict = flag("print_verdict", print_verdict)
        self._loops: dict[str, LoopMonitor] = {}
        self._interval = 0

    def __repr__(self) -> str:
        files = {kind: file for kind, file in self._files.items() if file}
        shown = [f"{kind}={file if file is True else str(file)!r}" for kind, file in files.items()]
        if shown:
            shown.append(f"keep={self._keep}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins anew."""
        self.reports = ()
        self._loops = {split: LoopMonitor(split, self._keep) for split in ("train", "val")}
        self._interval = _interval(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds the training loaders; again for each epoch: Lightning may have made new ones."""
        self._loops["train"].watch(trainer.train_dataloader)

    on_train_epoch_start = on_train_start

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Notes that the batch is there, on its device."""
        self._loops["train"].start_step()

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Notes that the step is over, and logs if it is time to."""
        self._loops["train"].end_step()
        interval = _interval(trainer)
        if interval != self._interval:
            self._interval = interval
            self._log(trainer, self._loops["train"])

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds the validation loaders."""
        if loop := self._loops.get("val"):  # none outside of fit
            loop.watch(trainer.val_dataloaders)

    def on_validation_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Notes that the batch is there, on its device."""
        if loop := self._loops.get("val"):
            loop.start_step()

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Notes that the step is over."""
        if loop := self._loops.get("val"):
            loop.end_step()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs."""
        if (loop := self._loops.get("val")) and not trainer.sanity_checking:
            self._log(trainer, loop)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes the reports, prints their verdicts and writes the files."""
        loops, self._loops = self._loops, {}
        for loop in loops.values():
            loop.release()
        results = [result for loop in loops.values() for result in loop.results()]
        self.reports = tuple(report for report, _ in results) if loops else self.reports
        if self._print_verdict and trainer.is_global_zero:
            for report, _ in results:
                print(f"{report.name} loader: {report.verdict}")
        for kind, write in (("trace", write_trace), ("plot", write_plot)):
            path = self._path(trainer, kind)
            if path is not None and results:
                write(path, [trace for _, trace in results])

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Does the same for what there is until then; Ctrl-C is how many a run ends."""
        self.on_fit_end(trainer, pl_module)

    def _log(self, trainer: Trainer, loop: LoopMonitor) -> None:
        figures = loop.figures()
        if not figures:
            return
        # The same number as Lightning's own metrics of the step that ends here have.
        step = max(0, trainer.global_step - 1)
        # Not through LightningModule.log, which goes through all of its metrics at every step.
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=step)
        if self._progress_bar and loop.split == "train":
            trainer.progress_bar_metrics["wait %"] = round(100 * loop.wait_fraction, 1)

    def _path(self, trainer: Trainer, kind: str) -> Path | None:
        given = self._files[kind]
        if given is None:
            return None
        path = Path(trainer.default_root_dir, _FILES[kind]) if given is True else Path(given)
        if trainer.global_rank:
            path = path.with_suffix(f".rank{trainer.global_rank}{path.suffix}")
        return path


def _interval(trainer: Trainer) -> int:
    """Number of the logging interval; where steps are never logged, always the same."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return trainer.global_step // every if every else 0


def _checked_file(name: str, value: Any) -> str | os.PathLike[str] | Literal[True] | None:
    """Check what names a file that is written, or says whether there is one."""
    value = plain(value)
    if value is None or isinstance(value, bool):
        return True if value else None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        refuse(name, "a file's name, True or None", value)
    return value
