"""The notebook in one process, the judge in another: values between them are data, and each waits for the other."""
