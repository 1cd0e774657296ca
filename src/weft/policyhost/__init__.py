"""The policy helper: answers the questions of C programs on Weft's NIC, whose library (cpp/provider) has no Python."""
