"""Training of new workloads; the only place that imports TensorFlow."""
