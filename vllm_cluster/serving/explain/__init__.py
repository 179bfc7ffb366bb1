"""Why a start failed, from the logs of the cluster."""
