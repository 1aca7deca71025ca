"""The recipes "ddp" and "multinode": what each process of a distributed training has had."""
