"""What tells a person how this machine and the cluster are: ``doctor`` and its checks."""
