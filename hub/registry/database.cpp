#include "hub/registry/database.h"

namespace moex {

Statement& Statement::bind(std::int64_t value) {
    prepared_->bind(value);
    return *this;
}
Statement& Statement::bind(std::string_view value) {
    prepared_->bind(value);
    return *this;
}
Statement& Statement::bind(ByteView value) {
    prepared_->bind(value);
    return *this;
}
Status Statement::run() {
    while (step()) {}
    return status();
}

Transaction::Transaction(Database& database)
    : database_(database),
      begun_(database.begin()),
      open_(begun_.ok()) {}
Transaction::~Transaction() {
    if (open_) (void)database_.execute("ROLLBACK");
}
Status Transaction::commit() {
    MOEX_TRY(begun_);
    MOEX_TRY(database_.commit());
    open_ = false;
    return {};
}

}  // namespace moex
