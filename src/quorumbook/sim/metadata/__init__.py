"""The metadata stores of a simulation: one in memory behind a network, a ZooKeeper, an etcd."""
