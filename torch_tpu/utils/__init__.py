"""What PyTorch's extension points leave no room for."""
