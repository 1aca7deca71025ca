"""The repository's own pages as those of the site, and a page for each public name.

Every page keeps its path, so that its links lead where they do in the repository. Beside it the
site has its Markdown, and ``llms.txt``, which names all of them, for agents.
"""

from __future__ import annotations

import ast
import re
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
    """What ``import lit_loader`` gives, read and not imported: torch is not needed here."""
    for node in ast.parse((ROOT / "lit_loader" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES_IN":
            names = " ".join(ast.literal_eval(node.value).values()).split()
            return sorted(name for name in names if name not in TORCHS)
    raise RuntimeError("lit_loader/__init__.py has no _NAMES_IN")


GROUPS = {
    "The loader": "DataLoader LoaderConfig Retry replace_torch LoaderStatistics merge_states",
    "Lightning": "LoaderDataModule LoaderStateCallback LoaderMonitor",
    "Inside a dataset": "get_rng get_epoch get_shard note",
    "Datasets": "CachedDataset SharedSequence shared_dataset MixtureDataset MixtureStream "
    "PackedStream",
    "Samplers": "BalancedBatchSampler PackingBatchSampler TokenBudgetBatchSampler MixtureSampler",
    "Collating": "default_collate PadCollate Padded PackCollate Packed",
    "Other machines": "RayWorkers",
}
"""The public names by what one does with them; any other one is of the last group, "More"."""


def api_groups() -> dict[str, list[str]]:
    """By title the names of each group; errors and warnings have a page together."""
    left = [name for name in public_names() if not name.endswith(("Error", "Warning"))]
    groups = {}
    for title, names in GROUPS.items():
        groups[title] = [name for name in names.split() if name in left]
        left = [name for name in left if name not in groups[title]]
    return {**groups, "More": left} if left else groups


def api_pages() -> dict[str, str]:
    """By path the pages of the API, as Markdown."""
    raised = [name for name in public_names() if name.endswith(("Error", "Warning"))]
    first = "    options:\n      heading_level: 1\n"
    pages = {
        f"api/{name}.md": f"---\ntitle: {name}\n---\n::: lit_loader.{name}\n{first}"
        for names in api_groups().values()
        for name in names
    }
    named = "".join(f"::: lit_loader.{name}\n\n" for name in raised)
    pages["api/errors.md"] = f"# Errors and warnings\n\n{named}"
    listed = "".join(
        f"## {title}\n\n" + "".join(f"- [{name}]({name}.md)\n" for name in names) + "\n"
        for title, names in api_groups().items()
    )
    return {
        "api/README.md": f"# API\n\nThe public names of `lit_loader`, by what you do with them. "
        f"Options are also in [tables](../conf/README.md#options).\n\n{listed}"
        "## Errors and warnings\n\n- [Errors and warnings](errors.md)\n",
        **pages,
    }


def api_nav() -> list[Any]:
    """The pages of the API in the navigation: a section for each group."""
    groups = {t: [f"api/{name}.md" for name in names] for t, names in api_groups().items()}
    return ["api/README.md", *({title: uris} for title, uris in groups.items()), "api/errors.md"]


def pages() -> dict[str, Path]:
    """By path the repository's own pages."""
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
    """Add the pages, and what they link to beside pages: pictures, programs, the licence."""
    own = pages()
    linked = {
        (page.parent / target).resolve()
        for page in own.values()
        for target in LINKED.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    }
    beside = {
        path.relative_to(ROOT).as_posix(): path
        for path in linked
        if path.is_file() and path.is_relative_to(ROOT) and path.suffix != ".md"
    }
    for uri, path in {**own, **beside}.items():
        file = File.generated(
            config, uri, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED
        )
        files.append(file)
    for uri, text in api_pages().items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Have a list begin without a blank line above it, as GitHub does."""
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
    """Write each page's Markdown beside it, and ``llms.txt``, which leads to them."""
    site = Path(config.site_dir)
    texts = {uri: path.read_text(encoding="utf-8") for uri, path in pages().items()}
    for uri, text in texts.items():
        (site / uri).parent.mkdir(parents=True, exist_ok=True)
        (site / uri).write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text(llms(config.site_description, config.nav, texts))


def llms(about: str, nav: list[dict[str, Any]], texts: dict[str, str]) -> str:
    """What an agent should read: a skill first, then the pages of the guide."""
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
            yield from [content] if isinstance(content, str) else content


def _heading(text: str) -> str:
    return re.findall(r"^# (.+)$", text, flags=re.MULTILINE)[0]


def _first(text: str) -> str:
    """A page's first paragraph, on one line, without links."""
    paragraphs = re.split(r"\n\s*\n", text)
    said = next(part for part in paragraphs if part.strip() and not re.match(r"[#[|<-]|```", part))
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(said.split()))
