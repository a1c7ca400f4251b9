// The titles of items, for people who read recommendations.
#pragma once

#include <map>
#include <string>

namespace tessera::data {

/// Reads titles, in UTF-8, by the ids that the file of ratings has. The format is found by the
/// first line; the file may be compressed by gzip:
///
///   u.item         MovieLens: ID|TITLE|...
///   movies.dat     MovieLens: ID::TITLE::GENRES
///   movies.csv     a header with movieId (or itemId) and title; fields may stand in quotes
///   NAME.item      RecBole: tabs below a header with item_id:token and a field called title, name
///                  or ..._title
///
/// If the file is not UTF-8, the first two are read as Latin-1, as MovieLens has them. Throws
/// InputError, with file and line, for any other format, for an item without an id, and for an id
/// that comes twice.
std::map<std::string, std::string> read_item_titles(const std::string& path);

}  // namespace tessera::data
