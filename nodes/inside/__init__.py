"""What nodes run or change inside of a model: finds it, describes it to the ranks, and says how it may be shared."""
