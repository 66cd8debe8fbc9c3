"""What every framework needs for data-parallel training; imports none of them."""
