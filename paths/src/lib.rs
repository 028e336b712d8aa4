//! Shows programs a view of /sys/class/infiniband and /dev/infiniband, preloaded by ironverbs run.
