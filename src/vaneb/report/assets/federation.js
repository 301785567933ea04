// The page of a federation: no client's result is on it.

const MANY_SITES = 15;   // up to which they are not folded away

function federationPage(data) {
  const sites = plainTable(["Site", "Clients", ""], data.sites, (_, j) => (j === 2 ? "left" : ""));
  const parts = [
    section("What was asked", null, plainTable(["", ""], data.model, (_, j) => (j === 1 ? "left" : ""))),
    section("Who took part", "A site may stand for many clients, such as the wards of a hospital.", data.sites.length > MANY_SITES ? folded(`All ${data.sites.length.toLocaleString("en")} sites`, sites) : sites),
  ];
  if (data.exchanges.length) parts.push(section("What was exchanged", "Bytes include what each message needs besides its content.", plainTable(["", "Messages", "To the sites", "From the sites"], data.exchanges)));
  if (data.prior) {
    const none = data.prior.axes.map(() => []);
    const view = { prior: data.prior, own: none, mean: none, ids: [], noise: null, single: true, chosen: () => -1, describe: () => [], words: ["", "clients"], opens: data.prior.opens, noun: ["client", "clients"] };
    parts.push(section("The population, in numbers", "The average over clients, and how far a client typically lies from it.", plainTable(["Parameter", "Mean", "Standard deviation"], data.parameters.map(([name, mean, sd]) => [name, say(mean), say(sd)]))));
    if (data.prior.spreads) parts.push(priorSection("prior", "The population", "Where the clients' parameters lie. Each site has its own results and a page with them. Nobody else has them.", view));
  }
  return parts;
}
