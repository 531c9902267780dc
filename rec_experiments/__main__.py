from rec_experiments.commands import main

main()
