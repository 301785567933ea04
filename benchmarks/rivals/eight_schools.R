# Eight schools: the best linear unbiased predictions of a random-effects model, by four estimators of its variance.
#   Rscript benchmarks/rivals/eight_schools.R
library(metafor)
effect <- c(28, 8, -3, 7, -1, 1, 18, 12)
error <- c(15, 10, 16, 11, 9, 11, 10, 18)
for (method in c("REML", "ML", "DL", "PM")) {
  fit <- rma(effect, sei = error, method = method)
  cat(method, "mean", fit$b, "variance between schools", fit$tau2, "its standard error", fit$se.tau2, "\n")
  print(blup(fit, level = 90))
}
