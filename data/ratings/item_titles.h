// What items are called, for people who read recommendations.
#pragma once

#include <map>
#include <string>

namespace tessera::data {

/// Titles in UTF-8 by the ids that the file of ratings has. The file is found by its first line,
/// compressed by gzip or not:
///
///   u.item         MovieLens: ID|TITLE|...
///   movies.dat     MovieLens: ID::TITLE::GENRES
///   movies.csv     a header with movieId (or itemId) and title; fields may stand in quotes
///   NAME.item      RecBole: tabs below a header with item_id:token and a field called title, name
///                  or ..._title
///
/// The first two may be in Latin-1, as MovieLens has them: they are, if the file is not UTF-8.
/// Throws InputError, with file and line, for anything else, for an item without an id, and for one
/// that comes twice.
std::map<std::string, std::string> read_item_titles(const std::string& path);

}  // namespace tessera::data
