"""From the metrics pages of replicas and GPUs to the control loop's decisions."""
