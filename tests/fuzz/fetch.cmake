# What `pull` reads of an endpoint: pages of the tree route, and the index of the shards.
moex_fuzz_batches(listing_sources tree_listing hub/fetch/repository.cpp hub/fetch/endpoint.cpp
    hub/fetch/web_address.cpp hub/fetch/web_client.cpp)
list(APPEND listing_sources hub/model/strict_json.cpp ${protocol_sources})
moex_fuzz(tree_listing SOURCES ${listing_sources} LIBS lz4 curl)
