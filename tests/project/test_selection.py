"""Tables that choose or mark tests by name: each name is that of a test."""

import re
from pathlib import Path

from tests.support import selection

TESTS = Path(__file__).parents[1]


def test_a_name_is_that_of_a_test() -> None:
    for name in (*selection.LONG, *selection.THINNED):
        file, _, function = name.partition("::")
        assert (TESTS / file).exists(), name
        if function:
            pattern = re.escape(re.split(r"\[|\*-", function)[0]).replace(r"\*", r"\w*")
            text = (TESTS / file).read_text()
            assert re.search(rf"^def {pattern}", text, re.MULTILINE), name
