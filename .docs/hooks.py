"""The repository's own pages as those of the site, and pages of the API.

Every page keeps its path, so that its links lead where they do in the repository. The site also has
each page's Markdown, and ``llms.txt``, which names all of them, for agents.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
FOLDERS = ("conf", "examples", "lit_loader", "tests", ".github", ".agents")
LINKED = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)")
SKILL = ".agents/skills/lit-loader/SKILL.md"
TORCHS = {"default_convert", "get_worker_info"}
FENCED = re.compile(r"^( *)```.*?^\1```$", flags=re.MULTILINE | re.DOTALL)


def public_names() -> list[str]:
    """Return what ``import lit_loader`` has, read and not imported: torch is not needed here."""
    for node in ast.parse((ROOT / "lit_loader" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES_IN":
            names = " ".join(ast.literal_eval(node.value).values()).split()
            return sorted(name for name in names if name not in TORCHS)
    raise RuntimeError("lit_loader/__init__.py has no _NAMES_IN")


GROUPS = {
    "Loader": "DataLoader LoaderConfig Retry LoaderStatistics merge_states check_determinism "
    "replace_torch",
    "Lightning": "LoaderDataModule LoaderStateCallback RandomStateCallback LoaderMonitor",
    "In a dataset": "get_rng get_epoch get_shard note",
    "Datasets": "CachedDataset SharedSequence shared_dataset MixtureDataset MixtureStream "
    "PackedStream",
    "Samplers and collating": "BalancedBatchSampler PackingBatchSampler TokenBudgetBatchSampler "
    "MixtureSampler default_collate PadCollate Padded PackCollate Packed",
    "Remote workers": "RayWorkers",
    "Errors and warnings": "",
}
"""The public names, by what they are for; a name that is missing here is of the last group."""


def api_groups() -> dict[str, list[str]]:
    """Return the names of each group, by its title."""
    left = public_names()
    groups = {}
    for title, names in GROUPS.items():
        groups[title] = [name for name in names.split() if name in left]
        left = [name for name in left if name not in groups[title]]
    groups[title] += left
    return groups


def _api_uri(title: str) -> str:
    return f"api/{title.lower().replace(' ', '_')}.md"


def api_pages() -> dict[str, str]:
    """Return the pages of the API as Markdown, by path: one for each group."""
    groups = api_groups()
    texts = {
        title: f"# {title}\n\n" + "".join(f"::: lit_loader.{name}\n\n" for name in names)
        for title, names in groups.items()
    }
    listed = "".join(
        f"- [{title}]({Path(_api_uri(title)).name}): {', '.join(f'`{name}`' for name in names)}\n"
        for title, names in groups.items()
    )
    return {
        "api/README.md": "# API\n\nThe public names of `lit_loader`. "
        f"[Options](../conf/README.md#options) has the loader's options in tables.\n\n{listed}",
        **{_api_uri(title): text for title, text in texts.items()},
    }


def api_nav() -> list[Any]:
    """Return the pages of the API for the navigation."""
    return ["api/README.md", *({title: _api_uri(title)} for title in GROUPS)]


def pages() -> dict[str, Path]:
    """Return the repository's own pages, by path."""
    found = [ROOT / "README.md"]
    for folder in FOLDERS:
        found += sorted((ROOT / folder).rglob("*.md"))
    return {page.relative_to(ROOT).as_posix(): page for page in found}


def on_config(config: Any) -> Any:
    """Put the API into the navigation."""
    for entry in config.nav:
        if "API" in entry:
            entry["API"] = api_nav()
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and the other files that they link to: pictures, programs, the licence."""
    own = pages()
    linked = {
        (page.parent / target).resolve()
        for page in own.values()
        for target in LINKED.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    }
    others = {
        path.relative_to(ROOT).as_posix(): path
        for path in linked
        if path.is_file() and path.is_relative_to(ROOT) and path.suffix != ".md"
    }
    for uri, path in {**own, **others}.items():
        file = File.generated(
            config, uri, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED
        )
        files.append(file)
    for uri, text in api_pages().items():
        files.append(File.generated(config, uri, content=text))
    return files


INSIDE = re.compile(r"lit_loader/(README|DESIGN)\.md|lit_loader/\w+/|tests/|\.agents/|\.github/")
"""Pages for contributors and agents, which the search of the site leaves out."""

TABS = re.compile(r"<!-- tabs -->\n(.*?)<!-- end of tabs -->\n", re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make tabs, exclude pages from the search, and begin lists as GitHub does."""
    if INSIDE.match(page.file.src_uri):
        page.meta["search"] = {"exclude": True}
    return _with_lists(TABS.sub(lambda found: _tabs(found[1]), markdown))


def _tabs(markdown: str) -> str:
    """Return titled blocks, which GitHub shows one after the other, as tabs."""
    parts = re.split(r"^\*\*(.+)\*\*$", markdown, flags=re.MULTILINE)
    titled = zip(parts[1::2], parts[2::2], strict=True)
    return "".join(f'=== "{title}"\n{textwrap.indent(text, "    ")}' for title, text in titled)


def _with_lists(markdown: str) -> str:
    """Add a blank line above a list where there is none: GitHub needs none."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        fenced ^= line.lstrip().startswith("```")
        begins = re.match(r"(-|\d+\.) ", line) and before.strip() and not before.startswith(" ")
        if begins and not fenced and not re.match(r"(-|\d+\.) ", before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def on_post_build(config: Any) -> None:
    """Write each page's Markdown, and ``llms.txt``, which leads to them."""
    site = Path(config.site_dir)
    texts = {uri: path.read_text(encoding="utf-8") for uri, path in pages().items()}
    for uri, text in texts.items():
        (site / uri).parent.mkdir(parents=True, exist_ok=True)
        (site / uri).write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text(llms(config.site_description, config.nav, texts))


def llms(about: str, nav: list[dict[str, Any]], texts: dict[str, str]) -> str:
    """Return what an agent should read: a skill first, then the pages of the guide."""
    lines = [
        f"# lit_loader\n\n> {about}.\n",
        "## Begin here\n",
        f"- [Skill]({SKILL}): move a project here, measure it, read the verdict, resume it",
    ]
    for entry in nav:
        for title, content in entry.items():
            uris = [content] if isinstance(content, str) else [*_uris(content)]
            named = [uri for uri in uris if uri in texts]
            lines += [f"\n## {title}\n"] * bool(named)
            lines += [f"- [{_heading(texts[uri])}]({uri}): {_first(texts[uri])}" for uri in named]
    api = [f"- [{Path(uri).stem}]({uri.removesuffix('.md')}.html)" for uri in [*api_pages()][1:]]
    return "\n".join([*lines, "\n## API (HTML)\n", *api, ""])


def _uris(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for content in [entry] if isinstance(entry, str) else entry.values():
            yield from [content] if isinstance(content, str) else _uris(content)


def _heading(text: str) -> str:
    return re.findall(r"^# (.+)$", text, flags=re.MULTILINE)[0]


def _first(text: str) -> str:
    """Return a page's first paragraph, on one line, without links."""
    paragraphs = re.split(r"\n\s*\n", text)
    said = next(part for part in paragraphs if part.strip() and not re.match(r"[#[|<-]|```", part))
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(said.split()))
