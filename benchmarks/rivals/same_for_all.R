# Rows and standard errors of lme4, for same_for_all.py:  Rscript same_for_all.R FOLDER
suppressMessages(library(lme4))
folder <- commandArgs(TRUE)[1]
write.csv(sleepstudy, file.path(folder, "sleepstudy.csv"), row.names = FALSE)
rows <- cbpp[rep(seq_len(nrow(cbpp)), cbpp$size), c("herd", "period")]
rows$y <- unlist(mapply(function(k, n) rep(c(1, 0), c(k, n - k)), cbpp$incidence, cbpp$size))
write.csv(rows, file.path(folder, "cbpp.csv"), row.names = FALSE)
sleep <- lmer(Reaction ~ Days + (1 | Subject), sleepstudy)
herds <- glmer(y ~ period + (1 | herd), rows, family = binomial)
se <- c(coef(summary(sleep))[-1, 2], coef(summary(herds))[-1, 2])
writeLines(format(se, digits = 8), file.path(folder, "errors.txt"))
cat("lme4", as.character(packageVersion("lme4")), "\n")
