// Writes ratings to a file, with train_recommender's division into training and held-out ratings.
// Programs that are compared with train_recommender read the file.
//
//   bench_rating_split --data ml-100k/u.data --split fold:1/5 --seed 1 --output fold.tsv
//
// After a header, the file has one line per rating: the user's index, the item's index (both from
// 0, not the ids in the data), the rating, and 1 if the rating is held out or 0 if it is for
// training.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "apps/console/flags.h"
#include "core/error.h"
#include "data/ratings/rating_data.h"
#include "dist/bootstrap.h"

namespace {

using namespace tessera;

struct Options {
  data::RatingDataOptions data;
  int64_t seed = 1;
  std::string output;
};

Options parse(int argc, char** argv) {
  Options options;
  apps::Flags app("Writes the ratings of a split", "bench_rating_split");
  app.add_option("--data", options.data.path, "ratings, as train_recommender reads them");
  app.add_option("--columns", options.data.columns);
  app.add_option("--split", options.data.split);
  app.add_option("--seed", options.seed);
  app.add_option("--output", options.output, "FILE.tsv to write (required)");
  const std::string help = app.parse(argc, argv);
  if (!help.empty()) {
    fmt::print("{}", help);
    std::exit(0);
  }
  if (options.output.empty()) fail_input("--output FILE.tsv is missing");
  options.data.seed = static_cast<uint64_t>(options.seed);
  return options;
}

void write(std::ofstream& file, const data::Ratings& ratings, int held_out) {
  for (size_t i = 0; i < ratings.users.size(); ++i) {
    file << fmt::format("{}\t{}\t{}\t{}\n", ratings.users[i], ratings.items[i], ratings.values[i],
                        held_out);
  }
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const data::RatingData ratings = data::open_rating_data(options.data);
  std::ofstream file(options.output);
  file << "user\titem\trating\theld_out\n";
  write(file, ratings.train, 0);
  write(file, ratings.validation, 1);
  file.close();
  if (!file) fail_input("{}: cannot be written", options.output);
  fmt::print("{}\n", ratings.description());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::dist::run(argc, argv, [&](tessera::dist::World&) { return run(argc, argv); });
}
