"""`lit_loader.replace_torch()`: programs and libraries that make their loaders of torch's class.

Each program runs in a process of its own, as a line of it counts for all of the process.
"""

import textwrap
from pathlib import Path

import pytest

from tests.support.programs import run_program

LIBRARY = """
    import functools
    import torch
    import torch.utils.data
    import torch.utils.data.dataloader
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import DataLoader as Loader

    def given(make=DataLoader):  # a default
        return make

    def closed(kind):
        return lambda *args, **options: kind(*args, **options)

    class Runner:
        loader_class = DataLoader

    WAYS = {
        "torch.utils.data": lambda *a, **o: torch.utils.data.DataLoader(*a, **o),
        "torch.utils.data.dataloader": lambda *a: torch.utils.data.dataloader.DataLoader(*a),
        "global": lambda *a, **o: DataLoader(*a, **o),
        "another name": lambda *a, **o: Loader(*a, **o),
        "default": given(),
        "class attribute": Runner().loader_class,
        "closure": closed(DataLoader),
        "partial": functools.partial(DataLoader, drop_last=False),
        "with a type": lambda *a, **o: DataLoader[int](*a, **o),
    }

    class Derived(DataLoader):
        def __init__(self, dataset, **options):
            super().__init__(dataset, **options)

    class OldStyle(torch.utils.data.DataLoader):
        def __init__(self, dataset, **options):
            torch.utils.data.DataLoader.__init__(self, dataset, **options)
"""
"""A library that knows nothing of lit_loader."""

PROGRAM = """
    import multiprocessing
    import importlib.util
    import sys
    import warnings

    import torch
    from torch.utils.data import TensorDataset

    import lit_loader

    multiprocessing.set_start_method("fork")
    before = sys.argv[1] == "before"
    if before:
        lit_loader.replace_torch()
        import library
    else:
        import library
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lit_loader.replace_torch()
        (told,) = [str(each.message) for each in caught]
        assert "these classes keep torch's engine" in told, told
        assert "library.Derived, library.OldStyle" in told, told
    data = TensorDataset(torch.arange(10))
    for name, way in library.WAYS.items():
        loader = way(data, 4)
        assert type(loader) is lit_loader.DataLoader, name
        assert isinstance(loader, library.DataLoader)
        assert [len(x) for x, in loader] == [4, 4, 2]
    for kind in library.Derived, library.OldStyle:
        loader = kind(data, batch_size=4, num_workers=1)
        assert isinstance(loader, lit_loader.DataLoader) == before
        assert isinstance(loader, library.DataLoader)
        assert [len(x) for x, in loader] == [4, 4, 2]

    if before and importlib.util.find_spec("torchdata"):
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = StatefulDataLoader(list(range(5)), batch_size=2, num_workers=1)
        assert not isinstance(loader, lit_loader.DataLoader)  # it stays its own
        assert [len(batch) for batch in loader] == [2, 2, 1]
        lit_loader.replace_torch()  # says nothing of it
"""


def program(folder: Path, source: str, name: str = "program") -> Path:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    return path


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_library_that_is_imported(order: str, tmp_path: Path) -> None:
    program(tmp_path, LIBRARY, "library")
    run_program(program(tmp_path, PROGRAM), order, options=("-W", "error"))


ENDS = """
    import copy
    import inspect
    import pickle

    import torch
    from torch.utils.data import DataLoader as TorchLoader
    from torch.utils.data import TensorDataset

    import lit_loader

    data = TensorDataset(torch.arange(3))
    with lit_loader.replace_torch():
        made = torch.utils.data.DataLoader(data)
        assert type(made) is lit_loader.DataLoader
        with lit_loader.replace_torch():
            pass
        assert type(torch.utils.data.DataLoader(data)) is lit_loader.DataLoader
    assert type(torch.utils.data.DataLoader(data)) is TorchLoader
    standing = lit_loader.replace_torch()
    assert type(torch.utils.data.DataLoader(data)) is lit_loader.DataLoader
    standing.undo()
    standing.undo()  # does nothing

    theirs = TorchLoader(data, batch_size=2)
    signature, init = inspect.signature(TorchLoader), inspect.signature(TorchLoader.__init__)
    with lit_loader.replace_torch():
        assert inspect.signature(TorchLoader) == signature
        assert inspect.signature(TorchLoader.__init__) == init
        for loader in theirs, copy.copy(theirs), pickle.loads(pickle.dumps(theirs)):
            assert type(loader) is TorchLoader
            assert isinstance(loader, torch.utils.data.DataLoader)
            assert [len(x) for (x,) in loader] == [2, 1]

    class Derived(TorchLoader[int]):
        pass

    assert not issubclass(Derived, lit_loader.DataLoader)
    theirs = Derived(data, batch_size=2)
    assert [len(x) for (x,) in theirs] == [2, 1]
    assert [len(x) for (x,) in made] == [1, 1, 1]  # is what it is
"""


def test_what_is_replaced_and_for_how_long(tmp_path: Path) -> None:
    # What other test modules derive from torch's class is not in this process.
    run_program(program(tmp_path, ENDS), options=("-W", "error"))


LIGHTNING = """
    import warnings

    import torch
    from torch.utils.data import TensorDataset

    import lit_loader
    from lightning import LightningDataModule, LightningModule, Trainer
    lit_loader.replace_torch()
    from torch.utils.data import DataLoader

    class Scaled(DataLoader):  # Lightning makes another one with other arguments
        def __init__(self, dataset, scale, **options):
            super().__init__(dataset, **options)
            self.scale = scale

    class Data(LightningDataModule):
        data = TensorDataset(torch.arange(12.0))

        def train_dataloader(self):
            workers = {"num_workers": 1, "multiprocessing_context": "fork"}
            return DataLoader(self.data, batch_size=4, shuffle=True, **workers)

        def val_dataloader(self):
            return Scaled(self.data, 3, batch_size=3)

        predict_dataloader = val_dataloader

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def training_step(self, batch, _):
            self.seen += batch[0].tolist()
            return self.layer(batch[0][:, None]).sum()

        def validation_step(self, batch, _):
            self.log("seen", batch[0].sum())

        def predict_step(self, batch, _):
            return batch[0]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    module = Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "max_epochs": 2}
    warnings.simplefilter("ignore")
    trainer = Trainer(**quiet, devices=2, strategy="ddp")  # a sampler of ranks in each loader
    trainer.fit(module, Data())
    assert type(trainer.train_dataloader) is lit_loader.DataLoader
    assert isinstance(trainer.val_dataloaders, lit_loader.DataLoader)
    parts = [module.seen[:6]] * 2
    assert len(module.seen) == 12 and len(set(parts[0])) == 6, module.seen
    torch.distributed.all_gather_object(parts, parts[0])
    assert sorted(sum(parts, [])) == list(range(12)), parts
    predicted = torch.cat(trainer.predict(module, Data()))
    assert type(trainer.predict_dataloaders) is Scaled
    assert trainer.predict_dataloaders.scale == 3
    assert len(predicted) == 6, predicted
    from_sets = LightningDataModule.from_datasets(Data.data, batch_size=3)
    assert type(from_sets.train_dataloader()) is lit_loader.DataLoader
"""


def test_lightning_shards_and_renews_loaders(tmp_path: Path) -> None:
    run_program(program(tmp_path, LIGHTNING), forked=True)
