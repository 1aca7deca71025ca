"""What is said of samples that do not fit together, and of exceptions in workers."""

import subprocess
from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from tests.support.samples import Call

Shapeless = type("Shapeless", (), {"shape": property(lambda _: 1 // 0)})


def image(index: int) -> Any:
    return {"image": torch.zeros(3, 4 + (index == 5)), "label": index}


def keys(index: int) -> Any:
    return {"a": 1} if index == 5 else {"a": 1, "b": 2}


def nothing(index: int) -> Any:
    return None if index == 5 else torch.zeros(2)


def said(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (image, ["field ['image']", "index 0 has shape (3, 4)", "index 5 has shape (3, 5)"]),
        (keys, ["index 5 has keys ['a']"]),
        (lambda _: Shapeless(), ["default_collate: batch must contain"]),
        (nothing, ["index 0 has shape (2,)", "index 5 has type NoneType"]),
    ],
)
def test_the_field_and_samples_are_named(function: Any, parts: list[str], num_workers: int) -> None:
    with pytest.raises((RuntimeError, KeyError, TypeError)) as caught:
        list(DataLoader(Call(function, 8), 8, num_workers=num_workers))
    assert [part for part in parts if part not in said(caught.value)] == []


def failing(index: int) -> int:
    if index == 5:
        raise subprocess.CalledProcessError(1, "convert")
    return index


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_with_a_message_of_its_own_names_the_sample(num_workers: int) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        list(DataLoader(Call(failing, 8), 8, num_workers=num_workers))
    assert "at index 5 (sample 5 of 8)" in said(caught.value)


def test_the_workers_traceback_begins_in_the_users_code() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(DataLoader(Call(lambda index: index // 0, 8), 8, num_workers=1))
    frames = [line for line in str(caught.value).splitlines() if line.lstrip().startswith("File")]
    assert not [line for line in frames if "/lit_loader/" in line]
    assert "LIT_LOADER_ALL_FRAMES=1" in str(caught.value)
