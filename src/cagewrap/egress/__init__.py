"""What leaves a cage through a process of the keeper's."""
