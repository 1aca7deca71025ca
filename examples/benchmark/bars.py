"""Bars of the speed of programs, compared with torch's DataLoader: slower ones are orange."""

TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
FASTER, SLOWER = "tab:blue", "tab:orange"


def draw(rows, path, title, axis, caption):
    """Draw a bar for each row: name, (median, least, largest) speed, ratio of CPU times.

    A speed of 1 is torch's. The fastest is on top.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = sorted(rows, key=lambda row: row[1])
    figure = Figure(figsize=(9, 2 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    right, ends = axes.get_yaxis_transform(), [0.7, 1.5]
    for place, (_, (speed, least, largest), cpu) in enumerate(rows):
        axes.barh(place, speed - 1, left=1, height=0.7, color=FASTER if speed >= 1 else SLOWER)
        axes.plot([least, largest], [place] * 2, color="black", lw=1)
        axes.text(1.03, place, f"{cpu:.2f}×", transform=right, va="center", fontsize=9)
        ends += [least, largest]
    axes.text(1.03, len(rows) - 0.2, "CPU time", transform=right, fontsize=9)
    axes.axvline(1, color="black", lw=1)
    axes.set_xscale("log")
    axes.set_xlim(0.9 * min(ends), 1.1 * max(ends))
    ticks = [tick for tick in TICKS if min(ends) <= tick <= max(ends)]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=9)
    axes.set_ylim(-0.7, len(rows) + 0.3)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"{axis} (log scale, right is better)")
    labels = ((FASTER, "lit_loader is faster"), (SLOWER, "lit_loader is slower"))
    patches = [Patch(color=color, label=label) for color, label in labels]
    axes.legend(handles=patches, loc="lower right", fontsize=9)
    figure.suptitle(title)
    figure.supxlabel(
        f"{caption}\nCPU time: lit_loader's divided by torch's (lower is better).", fontsize=8
    )
    figure.savefig(path, dpi=110)
