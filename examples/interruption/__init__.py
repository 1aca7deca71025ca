"""The recipe "resume": a training that is killed and resumed, compared with one that is not."""
