# Rscript crossed.R FOLDER: nested and crossed groups of rows that are not Gaussian, in lme4's and mlmRev's data; writes
# FOLDER/SET.csv, 30% of whose rows are test rows, and prints what glmmTMB makes of them.  crossed.py reads the same files.
suppressPackageStartupMessages({library(lme4); library(mlmRev); library(glmmTMB)})
out <- commandArgs(trailingOnly = TRUE)[1]
dir.create(out, showWarnings = FALSE, recursive = TRUE)
one <- function(name, data, formula, family) {
  set.seed(1)
  data$test <- as.integer(runif(nrow(data)) < .3)
  write.csv(data, file.path(out, paste0(name, ".csv")), row.names = FALSE)
  begin <- sum(proc.time()[1:2])
  fit <- glmmTMB(formula, data[data$test == 0, ], family = family)
  seconds <- sum(proc.time()[1:2]) - begin
  later <- data[data$test == 1, ]
  y <- later$y
  m <- predict(fit, later, type = "response", allow.new.levels = TRUE)
  loss <- if (identical(family, "binomial")) -mean(ifelse(y == 1, log(m), log1p(-m))) else
    mean(2 * (ifelse(y > 0, y * log(pmax(y, 1) / m), 0) - (y - m)))
  cat(name, "loss", loss, "seconds", seconds, "fixed", fixef(fit)$cond, "se", sqrt(diag(vcov(fit)$cond)), "sd",
      sapply(VarCorr(fit)$cond, function(x) attr(x, "stddev")), "size", sigma(fit), "\n")
}
text <- function(data, columns) { data[columns] <- lapply(data[columns], as.character); data }
verbagg <- with(VerbAgg, data.frame(id, item, Anger, Gender, y = as.integer(r2 == "Y")))
one("verbagg", text(verbagg, c("id", "item", "Gender")), y ~ Anger + Gender + (1 | id) + (1 | item), "binomial")
immun <- with(guImmun, data.frame(mom, comm, kid2p, y = as.integer(immun == "Y")))
one("guimmun", text(immun, c("mom", "comm", "kid2p")), y ~ kid2p + (1 | comm/mom), "binomial")
ticks <- with(grouseticks, data.frame(brood = BROOD, loc = LOCATION, cH = cHEIGHT / 50, y = TICKS))
one("ticks", text(ticks, c("brood", "loc")), y ~ cH + (1 | loc/brood), "poisson")
one("ticks-nb", text(ticks, c("brood", "loc")), y ~ cH + (1 | loc/brood), nbinom2)
