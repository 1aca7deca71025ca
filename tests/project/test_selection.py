"""Tables that choose or mark tests by name: each name is that of a test."""

import re
from pathlib import Path

import pytest

from tests.support import selection

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", [*selection.LONG, *selection.THINNED, *selection.LINUX])
def test_a_name_is_that_of_a_test(name: str) -> None:
    file, _, function = name.partition("::")
    assert (TESTS / file).exists()
    if function:
        pattern = re.escape(re.split(r"\[|\*-", function)[0]).replace(r"\*", r"\w*")
        assert re.search(rf"^def {pattern}", (TESTS / file).read_text(), re.MULTILINE)
