// Tests of the judgements on the certificate and the disk.
#include "hub/net/health/host_state.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

constexpr std::int64_t day_s = 86'400, now_s = 1'800'000'000;
constexpr std::uint64_t much = 1ull << 40;

CertificateStage stage_with(std::int64_t left_s) {
    return certificate_stage({.certificate_end_s = now_s + left_s}, now_s);
}

TEST(HostStateTest, StagesOfACertificateAreThirtySevenAndOneDays) {
    EXPECT_EQ(certificate_stage({.certificate_end_s = 0}, now_s), CertificateStage::good);
    EXPECT_EQ(stage_with(30 * day_s + 1), CertificateStage::good);
    EXPECT_EQ(stage_with(30 * day_s), CertificateStage::month);
    EXPECT_EQ(stage_with(7 * day_s + 1), CertificateStage::month);
    EXPECT_EQ(stage_with(7 * day_s), CertificateStage::week);
    EXPECT_EQ(stage_with(day_s + 1), CertificateStage::week);
    EXPECT_EQ(stage_with(day_s), CertificateStage::day);
    EXPECT_EQ(stage_with(1), CertificateStage::day);
    EXPECT_EQ(stage_with(0), CertificateStage::expired);
    EXPECT_EQ(stage_with(-400 * day_s), CertificateStage::expired);
}

TEST(HostStateTest, DiskIsFullWhenWritesFailOrLittleIsFree) {
    EXPECT_FALSE(is_disk_full({.state_free_bytes = much}));
    EXPECT_TRUE(is_disk_full({.state_free_bytes = 1 << 20}));
    EXPECT_TRUE(is_disk_full({.state_free_bytes = much, .state_writes_fail = true}));
}

// Looks every five seconds at a certificate that expires, and counts the reminders.
TEST(HostStateTest, ReminderIsDueAtEachStageAndOnceADay) {
    CertificateReminder reminder;
    int reminders = 0;
    const std::int64_t end_s = now_s + 40 * day_s;
    for (std::int64_t at_s = now_s; at_s < end_s - 29 * day_s; at_s += 5)
        reminders += reminder.is_due(certificate_stage({.certificate_end_s = end_s}, at_s), at_s);
    EXPECT_EQ(reminders, 1) << "the first day of the last thirty";

    EXPECT_TRUE(reminder.is_due(CertificateStage::week, end_s - 7 * day_s));
    EXPECT_FALSE(reminder.is_due(CertificateStage::week, end_s - 7 * day_s + 5));
    EXPECT_TRUE(reminder.is_due(CertificateStage::day, end_s - 7 * day_s + 10));
    EXPECT_TRUE(reminder.is_due(CertificateStage::expired, end_s));
    EXPECT_FALSE(reminder.is_due(CertificateStage::good, end_s + 5)) << "renewed";
    EXPECT_TRUE(reminder.is_due(CertificateStage::month, end_s + 10)) << "a new end";
}

}  // namespace
}  // namespace moex::net
