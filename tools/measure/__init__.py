"""What measures and compares: demo, benchmarks, soak, fuzzing."""
