"""``lit-loader-bench``: measures the loaders that are installed on the same work, side by side.

The files, in the order in which a run meets them::

    app        the Hydra application: finds its configuration, turns errors into one line
    names      cases and loaders by name; what they need installed        (imports no torch)
    settings   the options of a run, checked                              (imports no torch)
    runner     plans the rows, measures them under a progress bar, writes, whatever happens
    cases/*    one kind of work each: which rows there are, and what each measures
    opened, contenders, endless   the loaders, all opened with the same options
    rounds     lets them take turns; the first round is not counted
    limits     what no loader can undercut, measured in the same rounds
    results    a measurement: figures by round, ratios, targets
    grid, advice   the user's own dataset over num_workers and prefetch_factor, and in words
    report, files, plots, machine, check   table; JSON and CSV; PNG; where; regression on ratios
"""
