# mixsqp on a given matrix: Rscript mixsqp.R MATRIX ROWS COLUMNS WEIGHTS
# MATRIX holds ROWS x COLUMNS doubles, column after column; WEIGHTS is written as COLUMNS doubles.
# Prints one line of JSON.  Time is that of the solver alone, with its default settings.
suppressMessages(library(mixsqp))
given <- commandArgs(trailingOnly = TRUE)
rows <- as.integer(given[2])
columns <- as.integer(given[3])
L <- matrix(readBin(given[1], "double", rows * columns), rows, columns)
spent <- proc.time()
fit <- mixsqp(L, control = list(verbose = FALSE))
spent <- proc.time() - spent
writeBin(as.double(fit$x), given[4])
cat(sprintf('{"cpu": %.3f, "wall": %.3f, "status": "%s", "versions": "mixsqp %s, R %s.%s, %s"}\n',
            sum(spent[c("user.self", "sys.self")]), spent["elapsed"], fit$status,
            as.character(packageVersion("mixsqp")), R.version$major, R.version$minor,
            basename(normalizePath(extSoftVersion()["BLAS"]))))
