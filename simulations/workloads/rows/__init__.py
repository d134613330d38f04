"""Rows with columns: tables, folders of images and sets of the hub, read once, by one set of rules.

    files      a path of a .csv, .tsv, .jsonl or .parquet file -> a table of pyarrow
    table      columns by their names: inputs, targets, index columns, classes
    images     Pillow's images -> arrays by one rule of scale; folders with a folder for each class
    hub        shards of a mirror, or the ``datasets`` library -> batches of columns
    read       whatever ``fedlsg.Workload`` takes -> ``Rows`` (form)
Sizes, scales and classes follow from public rows (test) or a declared list, never from training rows.
"""
