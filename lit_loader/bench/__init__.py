"""``lit-loader-bench``: measures the loaders that are installed on the same work, side by side.

The files, in the order in which a run meets them::

    app          the Hydra application: finds its configuration, turns errors into one line
    core/        names (cases, loaders, packages they need) and settings, which import no torch;
                 results: figures by round, ratios, targets; processes: processor time and memory
    runner       plans the rows, measures them under a progress bar, writes, whatever happens
    cases/       one kind of work each: which rows there are, and what each measures
    data/        the datasets that the cases load
    loaders/     interface: how every loader is opened and used; adapters: the loaders, all opened
                 with the same options; spdl_grain: two of them that need a wrapping
    measure/     rounds: lets the loaders take turns; limits: what no loader can undercut;
                 session: what a case measures with; machine: where it was measured
    own_dataset/ the user's own dataset over num_workers and prefetch_factor, and advice in words
    report/      console: tables; files: JSON and CSV; plots: PNG; check: regression on ratios
    device_copy  a program of its own: ways of getting batches onto a CUDA device
"""
