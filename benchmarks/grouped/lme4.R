# Rscript lme4.R DATA.csv FORMULA FAMILY: held-out loss of lme4 and the seconds its fit took, by commas.
suppressPackageStartupMessages(library(lme4))
given <- commandArgs(trailingOnly = TRUE)
data <- read.csv(given[1])
data$client <- factor(data$client)
train <- data[data$test == 0, ]
test <- data[data$test == 1, ]
begin <- proc.time()[["elapsed"]]
fit <- suppressMessages(suppressWarnings(
  if (given[3] == "gaussian") lmer(as.formula(given[2]), train, control = lmerControl(check.nobs.vs.nRE = "ignore"))
  else glmer(as.formula(given[2]), train, family = given[3])
))
seconds <- proc.time()[["elapsed"]] - begin
expected <- predict(fit, test, type = "response", allow.new.levels = TRUE)
loss <- if (given[3] == "gaussian") mean((test$y - expected)^2) else
  -mean(ifelse(test$y == 1, log(expected), log(1 - expected)))
cat(format(loss, digits = 10), seconds, isSingular(fit), sep = ",")
